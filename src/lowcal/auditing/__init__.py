"""Audits: certificates, reports and plots."""
