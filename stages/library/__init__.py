"""The stages that a pipeline file declares. Light: nothing is compiled or loaded here."""
