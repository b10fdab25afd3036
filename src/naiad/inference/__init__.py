"""The nouns of every layer: datatypes, tensors, requests, responses, states, statistics."""
