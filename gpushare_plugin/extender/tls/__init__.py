"""HTTPS of the scheduler extender: certificates, and the end of certificates."""
