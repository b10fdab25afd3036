"""The nouns that every layer speaks: datatypes, tensors, requests, responses, states, statistics."""
