"""OpenFlow over a bridge's management socket."""
