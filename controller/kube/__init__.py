"""A client of the Kubernetes API: access, requests, errors, watches. Knows nothing of trials."""
