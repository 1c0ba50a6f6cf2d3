"""How models come in: file formats and the places that models come from."""
