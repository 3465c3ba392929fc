"""Raw text for models: preprocessor, batches, answers, and models opened with their vocabulary."""
