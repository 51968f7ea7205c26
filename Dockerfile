# vtepd alone: it is one static program and runs no other, CNI plugins aside. make image builds the same without an engine.
# make build && docker build -t vtepd --build-arg VERSION=$(bin/vtepd --version | cut -d' ' -f3) .
FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vtepd" \
      org.opencontainers.image.description="VXLAN tunnel endpoints beside FRR" \
      org.opencontainers.image.version="$VERSION"
ENV PATH=/usr/bin
COPY bin/vtepd /usr/bin/vtepd
# No /var/run/frr: an engine gives a volume that is still empty the owner that its place has in the image, and FRR, which had made
# the volume its own, could no longer write to it.
VOLUME ["/etc/vtepd", "/var/lib/vtepd", "/run/vtepd"]
HEALTHCHECK CMD ["/usr/bin/vtepd", "status"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/vtepd"]
CMD ["run"]
