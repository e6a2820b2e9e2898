"""What users write: workflows, steps, graphs, deciders, projections."""
