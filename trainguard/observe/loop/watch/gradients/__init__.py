"""Gradients: their norms, clipping and scaling, who spends them, and what stops them."""
