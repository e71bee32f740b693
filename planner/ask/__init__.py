"""What was asked, and which problem does it stand for?"""
