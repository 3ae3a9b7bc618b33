"""From a user's request to data, plan, run and folder: one way for command line and Python."""

from forethought.names import on_first_use

# Loaded on first use, since most of these modules load torch.
_HELD = {
    "": "account audit holders init job load members onnx_export predict public_proxy release train"
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)
