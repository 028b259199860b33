"""Loading of models and tokenizers, their limits, and the one module of our own, the mixture of experts.

The import path `distilvec.models` is frozen: the modules.json of saved students may name it.
"""
