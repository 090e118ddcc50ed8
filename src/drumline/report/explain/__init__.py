"""`drumline explain`: a recorded collective, put together step by step and shown."""
