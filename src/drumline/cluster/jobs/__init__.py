"""Jobs, from the laptop: submit, follow; Jupyter and TensorBoard as services."""
