"""The comparison itself: which sides take part, what they are asked, what the figures mean, how they are shown."""
