"""What is out there: `look` asks, `sighting` reads the answers, `findings` judges them."""
