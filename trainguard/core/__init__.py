"""What all parts speak of: findings, errors, the catalogue of invariants, settings."""
