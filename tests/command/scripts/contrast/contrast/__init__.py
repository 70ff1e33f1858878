from contrast.model import Encoder

__all__ = ["Encoder"]
