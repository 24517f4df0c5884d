"""The servers behind: asked, looked at, told apart, and chosen among."""
