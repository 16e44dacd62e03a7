"""Solvers: a kernel and its state behind one small protocol (`present`, `candidates`, `arrays`)."""
