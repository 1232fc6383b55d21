"""Rows of a padded batch that change hands (Baton, 4)."""
