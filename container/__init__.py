"""What the image does when it is started; `python -m container`."""
