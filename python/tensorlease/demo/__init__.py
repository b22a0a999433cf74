"""`tensorlease demo`: a small training job over one store.

Reading order: samples, crew, ledger, rollout, trainer, compare, story.
"""
