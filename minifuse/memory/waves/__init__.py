"""More KV than the device holds, attended in waves (FluidInfer, 4.1)."""
