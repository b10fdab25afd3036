"""What front ends call: models, their life, and requests from queue to response."""
