"""The loops of training, scoring and the check of proofs."""
