"""The embedded world: clips of moving shapes, with captions, features and the truth about them."""
