//go:build guest

package kernel_test

import (
	"testing"

	"vtepd/dataplane/kerneltest"
)

func TestWholeSuite(t *testing.T) { kerneltest.Run(t, kerneltest.Full, openSuite) }
