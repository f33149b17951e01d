"""Shopping in a web shop: search, look, choose options, buy (WebShop, arXiv:2207.01206)."""
