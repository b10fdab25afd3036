"""Backend for ONNX files."""
