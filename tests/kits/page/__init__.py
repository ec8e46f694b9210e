"""What tests of the page share: a browser, and a run as large as it must show."""
