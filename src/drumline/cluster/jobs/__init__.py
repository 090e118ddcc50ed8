"""Jobs, from the laptop: submit, follow, resume; Jupyter and TensorBoard as services."""
