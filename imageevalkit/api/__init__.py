"""Requests to endpoints."""
