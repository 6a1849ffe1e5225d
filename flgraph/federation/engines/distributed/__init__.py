"""Clients on several processes of one owner, over torch.distributed."""
