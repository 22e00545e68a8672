"""What training loops call: engines that follow a trainer's weights, and the interfaces of two other systems on top of `Engine`."""
