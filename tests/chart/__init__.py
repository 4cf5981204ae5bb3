"""Tests of the chart, the image and the examples: what a user deploys."""
