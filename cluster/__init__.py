"""What makes a cluster: certificates, tokens, tickets, and what a node says when it joins."""
