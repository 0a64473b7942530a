"""Programs that run the same process on other engines. They run in an environment of their own, without stellwerk."""
