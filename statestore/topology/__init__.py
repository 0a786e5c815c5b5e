"""What a pipeline is: the DSL, the graph it makes, the operators that run."""
