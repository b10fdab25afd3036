"""Backend for PyTorch's own files: TorchScript (``model.pt``) and exported programs (``.pt2``)."""
