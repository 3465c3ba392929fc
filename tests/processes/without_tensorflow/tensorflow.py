"""First in a process's path, it hides TensorFlow."""

raise ImportError("hidden by a test")
