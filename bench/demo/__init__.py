"""`python -m bench demo`: a small training job over one store.

Reading order: samples, crew, ledger, rollout, trainer, apart, own_host, compare, story.
"""
