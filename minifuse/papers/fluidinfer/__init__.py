"""FluidInfer's figures (section 6): the paper simulated them; here they are simulated and run."""
