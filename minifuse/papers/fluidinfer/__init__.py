"""The figures of FluidInfer (section 6), simulated there, and here simulated and run."""
