"""Backend for OpenVINO IR, and for ONNX files with OpenVINO's CPU engine."""
