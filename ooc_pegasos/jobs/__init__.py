"""Jobs that run by themselves: new files to a new model in production, or to a refusal with its reasons."""
