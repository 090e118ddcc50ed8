"""`drumline bench model-parallel`: one model trained in many forms, and what each costs."""
