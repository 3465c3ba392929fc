"""A local server with TensorFlow Serving's protocols. It needs the extra `serve`."""
