"""Which configuration is best?"""
