import torch


@torch.no_grad()
def update_teacher(teacher, student, decay=0.95):
    for old, new in zip(teacher.parameters(), student.parameters()):
        old.mul_(decay).add_(new, alpha=1 - decay)
    for old, new in zip(teacher.buffers(), student.buffers()):
        old.copy_(new)
