"""How checkpoints are tried out: runs in processes of their own, and what is seen of them."""
